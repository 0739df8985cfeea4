"""What pods wait for, in the words of who keeps them waiting, where only Events have those."""
