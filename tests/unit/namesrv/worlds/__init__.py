"""What tests drive: a name server's parts as a whole, with a disk, readers or operators of their own."""
