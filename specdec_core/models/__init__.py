"""Models: loading, forward passes over many sessions at once, and their KV memory."""
