"""Who is let in and what goes into a step: pure policies, no clock and no threads."""
