"""Who asks: tokens, people with roles and passwords, a proxy that names them."""
