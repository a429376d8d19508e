// --- what the browser keeps -------------------------------------------------------------------------

const PREFIX = 'lapidary.';
const memory = new Map();  // stands in where the browser keeps nothing
let warnedOfStorage = false;

const store = {
  get(key) {
    let kept = null;
    try { kept = localStorage.getItem(PREFIX + key); } catch { /* it keeps nothing */ }
    return kept ?? memory.get(key) ?? null;
  },
  set(key, value) {
    try {
      localStorage.setItem(PREFIX + key, value);
    } catch {
      memory.set(key, value);
      if (!warnedOfStorage) toast('The browser has no room left: delete a conversation to keep new ones.');
      warnedOfStorage = true;
    }
  },
  remove(key) {
    memory.delete(key);
    try { localStorage.removeItem(PREFIX + key); } catch { /* it was never there */ }
  },
  keys() {
    let kept = [];
    try { kept = Object.keys(localStorage); } catch { /* none */ }
    kept = kept.filter((key) => key.startsWith(PREFIX)).map((key) => key.slice(PREFIX.length));
    return [...kept, ...memory.keys()];
  },
};

const apiKey = {
  get() {
    let key = null;
    try { key = sessionStorage.getItem(PREFIX + 'key'); } catch { /* none */ }
    return key || store.get('key') || '';
  },
  set(value, keep) {
    store.remove('key');
    try { sessionStorage.removeItem(PREFIX + 'key'); } catch { /* none */ }
    if (!value) return;
    if (keep) return store.set('key', value);
    try { sessionStorage.setItem(PREFIX + 'key', value); } catch { memory.set('key', value); }
  },
};

const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'presence_penalty', 'frequency_penalty',
                 'repetition_penalty', 'max_tokens', 'seed'];
const SETTINGS = ['model', 'system', 'tools', 'stop-at', ...NUMBERS];  // all strings; '' is the server's default

const asText = (value) => (typeof value === 'string' ? value : '');
const parseJson = (text) => { try { return JSON.parse(text); } catch { return undefined; } };

function readSettings(raw) {
  const settings = {thinking: raw?.thinking === true};
  for (const name of SETTINGS) settings[name] = asText(raw?.[name]);
  return settings;
}
