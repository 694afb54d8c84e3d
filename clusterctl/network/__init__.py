"""Pure: which address and interface each node will use, and what each library would pick."""
