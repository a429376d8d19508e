class CacheHook:
    def add_partial(self, attr, req, res):
        pass


class TemplateLM:
    def __init__(self):
        self.cache_hook = CacheHook()

    def loglikelihood(self, requests, disable_tqdm=False):
        keyed = []
        for context, continuation in (request.args for request in requests):
            if context == "":
                ids = [self.prefix_token_id], self.tok_encode(continuation, add_special_tokens=False)
            else:
                whole, first = self.tok_encode(context + continuation), len(self.tok_encode(context))
                ids = whole[:first], whole[first:]
            keyed.append(((context, continuation), *ids))
        return self._loglikelihood_tokens(keyed, disable_tqdm=disable_tqdm)
