"""What happens: engine cores, live sessions over TCP, and virtual time."""
