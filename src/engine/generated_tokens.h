// An answer's first tokens that were generated before (SequenceSpec::generated): whether the
// request could have generated them and would have gone on. Errors begin with "resume", as requests
// call it.
#pragma once

#include <memory>
#include <span>

#include "engine/sequence.h"
#include "grammar/work.h"

namespace lapidary {

// All but the grammar: length, stop tokens, what sampling never draws.
Status CheckGenerated(const SequenceSpec& spec, int32_t vocab_size);

// The grammar behind the tokens; an error when it does not allow one of them. Takes as long as
// `work` allows (then an error of kind kBusy), without it as long as an answer's masks may.
Result<std::shared_ptr<const grammar::Matcher>> MatchGenerated(
    std::shared_ptr<const grammar::CompiledGrammar> grammar, std::span<const int32_t> generated,
    grammar::Work* work = nullptr);

}  // namespace lapidary
