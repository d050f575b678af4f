"""What goes over the wire: strict bodies in, structs out."""
