"""The parts of a Sender, an idea each. `kvfast.send` puts them together."""
