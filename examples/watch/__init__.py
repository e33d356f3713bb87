"""A watch of routes in each language of the page for client authors, docs/clients.md, which shows them whole."""
