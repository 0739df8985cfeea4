"""What a device's memory is given back for, and how it comes back as it was."""
