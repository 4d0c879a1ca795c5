"""What guesses the next tokens; wrong guesses cost speed only."""
