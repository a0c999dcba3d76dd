"""The conformance kit: tiny checkpoints that ask an inference engine which rotary table it computes, and the answers."""
