// The Hub's refusals as sentences that say what to do.
#pragma once

#include <string>

#include "base/result.h"
#include "hub/http_getter.h"
#include "hub/hub_settings.h"

namespace lapidary::hub {

// `what`: the file or the revision that was asked for, as "the file config.json".
Error HubError(const HttpAnswer& answer, const HubSettings& settings, const std::string& repo,
               const std::string& what);

// Whether the same request may succeed in a while.
bool MayPass(const HttpAnswer& answer);

}  // namespace lapidary::hub
