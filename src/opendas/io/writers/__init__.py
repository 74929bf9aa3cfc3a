"""Writers: microdata, measurements and tables of a release."""
