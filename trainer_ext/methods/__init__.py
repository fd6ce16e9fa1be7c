"""Methods as compositions of parts: pure tensor functions, registered with verl under verl's own signatures."""
