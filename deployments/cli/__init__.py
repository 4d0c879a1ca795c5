"""The command ``specdec``."""
