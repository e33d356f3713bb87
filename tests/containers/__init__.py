"""The two images, built and run for real."""
