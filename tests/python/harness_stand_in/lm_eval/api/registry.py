_models = {}


def register_model(name):
    def register(model):
        _models[name] = model
        return model

    return register


def get_model(name):
    return _models[name]
