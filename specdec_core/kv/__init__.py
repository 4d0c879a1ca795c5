"""KV memory as fixed-size blocks: who holds which, never what is in them."""
