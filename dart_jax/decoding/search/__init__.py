"""The tree search: candidates become a packed draft tree, on the host or on the device."""
