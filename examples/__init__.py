"""Programs that use the project as a reader would."""
