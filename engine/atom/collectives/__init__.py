"""What processes that compute one model together say to each other, on their devices."""
