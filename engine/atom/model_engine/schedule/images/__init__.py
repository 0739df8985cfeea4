"""Which images a step encodes, and which outputs of images the device keeps."""
