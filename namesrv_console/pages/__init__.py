"""What the views of the page show, made of what name servers hold."""
