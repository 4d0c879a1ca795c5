"""How many tokens to draft next: pure policies over what the rounds before showed."""
