"""The files of a data set: found, decompressed, read line by line."""
