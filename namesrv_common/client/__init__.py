"""What programs that call name servers share: connections, bounds on answers, and the client itself."""
