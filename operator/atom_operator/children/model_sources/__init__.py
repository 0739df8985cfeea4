"""Give pods what they need to reach models of buckets, and of images of their own."""
