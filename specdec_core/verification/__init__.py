"""Acceptance rules: pure, torch-free functions from a draft and the target's evidence to a verdict."""
