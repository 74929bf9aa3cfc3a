"""Keys, ledgers and stamps that an office keeps."""
