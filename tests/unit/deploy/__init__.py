"""The files of deploy/ and the pages about them: they parse, fit together, and name only what exists."""
