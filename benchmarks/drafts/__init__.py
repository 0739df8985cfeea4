"""What decides how much speculation is worth: texts with given answers, and a proposer's time."""
