"""Every reason of the contract, as the programs really send it."""
