"""Keys, ledger and stamps: what an office keeps and may be asked for."""
