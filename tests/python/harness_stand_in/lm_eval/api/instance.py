from dataclasses import dataclass


@dataclass
class Instance:
    request_type: str
    doc: dict
    arguments: tuple
    idx: int

    @property
    def args(self):
        return self.arguments
