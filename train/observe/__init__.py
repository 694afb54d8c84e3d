"""What is measured of a training, and how it is printed."""
