"""Units that are timed only: what is tried for speed."""
SPEED = []
