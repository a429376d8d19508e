// --- how full the context is ----------------------------------------------------------------------------

const contextLengths = new Map();  // model -> tokens that a prompt and its answer may have together
const NEARLY_FULL = 0.85;

// As the last answer's usage tells it; what is typed since is not counted.
function showContext() {
  const used = current.messages.findLast((message) => message.contextTokens)?.contextTokens;
  const most = contextLengths.get(current.settings.model);
  const isKnown = Boolean(used && most);
  byId('context').hidden = !isKnown;
  if (!isKnown) return;
  Object.assign(byId('context-meter'), {max: most, high: NEARLY_FULL * most, optimum: 0, value: used});
  const isNearlyFull = used > NEARLY_FULL * most;
  byId('context').classList.toggle('full', isNearlyFull);
  const count = (number) => number.toLocaleString('en');
  byId('context-text').textContent = `${count(used)} of ${count(most)} tokens${isNearlyFull ? ': nearly full' : ''}`;
}
