"""The parts of a Receiver, an idea each. `kvfast.receive` puts them together."""
