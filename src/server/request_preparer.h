// From a request's JSON to what is generated: parsed, checked, rendered and tokenised, its media
// encoded, its constraint looked up. All of it may take long.
#pragma once

#include <memory>

#include "server/byte_budget.h"
#include "server/generation.h"
#include "server/response_store.h"
#include "server/served_model.h"

namespace lapidary {

// From any thread. References must outlive this.
class RequestPreparer {
 public:
  RequestPreparer(Session& session, const ServedModel& model);

  ApiStatus PrepareChat(const OrderedJson& body, GenerationJob* job) const;
  ApiStatus PrepareCompletion(const OrderedJson& body, GenerationJob* job) const;
  // Of `memory`, what an answer is stored with stays taken while it is made.
  ApiStatus PrepareResponse(const OrderedJson& body, const std::shared_ptr<ByteLease>& memory,
                            GenerationJob* job) const;
  ApiStatus PrepareMessage(const OrderedJson& body, GenerationJob* job) const;

 private:
  ApiStatus CheckGeneration(const GenerationRequest& request) const;
  // The grammar of the request's constraint, where it is known, or what is to be compiled to it.
  ApiStatus FindGrammar(const GenerationRequest& request, GenerationJob* job) const;

  Session& session_;
  const ServedModel& model_;
  // Shared with answers that are stored when they end.
  const std::shared_ptr<ResponseStore> responses_;
};

}  // namespace lapidary
