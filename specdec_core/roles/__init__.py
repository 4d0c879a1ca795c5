"""The two data-plane roles without a wire: messages in, one step at a time, replies out."""
