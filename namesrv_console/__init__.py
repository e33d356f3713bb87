"""A web page for people: what the name servers hold, live, and where they differ."""
