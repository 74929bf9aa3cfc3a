"""The checks of ``opendas verify``, each from the release folder alone."""
