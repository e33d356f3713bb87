"""Name servers that are asked again and again, and what each of them said."""
