"""What somebody with a card that this project never saw runs in the first hour."""
