// Threads whose work may wait for that of others.
#pragma once

namespace lapidary {

// The calling thread gets a tenth of a processor that others want too, about, and all of an idle
// one.
void RunInBackground();

}  // namespace lapidary
