"""One generation as a sans-IO state machine: (state, input) -> (state, effects)."""
