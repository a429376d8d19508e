// --- settings ---------------------------------------------------------------------------------------

const EXAMPLE_TOOL = [{
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather of a city now',
    parameters: {
      type: 'object',
      properties: {city: {type: 'string', description: 'Name of the city'}},
      required: ['city'],
    },
  },
}];

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

// {tools, problem}: functions may stand alone or in OpenAI's wrapping.
function readTools(text) {
  if (!text.trim()) return {tools: [], problem: ''};
  let list;
  try { list = JSON.parse(text); } catch (error) { return {tools: [], problem: 'This is not JSON: ' + error.message}; }
  if (!Array.isArray(list)) list = [list];
  const tools = [];
  for (const [idx, item] of list.entries()) {
    const called = item?.function ?? item;
    let problem = '';
    if (!isObject(called) || !asText(called.name)) problem = 'needs a "name"';
    else if (!isObject(called.parameters ?? {})) problem = 'has "parameters" that are no JSON schema';
    if (problem) return {tools: [], problem: `Function ${idx + 1} ${problem}.`};
    tools.push({type: 'function', function: called});
  }
  return {tools, problem: ''};
}

// Shows what is wrong with the settings; true when nothing is.
function checkSettings(openPanel = true) {
  const bad = NUMBERS.map(byId).filter((input) => !input.checkValidity());
  for (const name of NUMBERS) byId(name).setAttribute('aria-invalid', String(bad.includes(byId(name))));
  const tell = (input) => `${input.labels[0].innerText.trim()}: ${input.validationMessage}`;
  byId('sampling-problem').textContent = bad.map(tell).join(' ');
  const {problem} = readTools(byId('tools').value);
  byId('tools').setAttribute('aria-invalid', String(Boolean(problem)));
  byId('tools-problem').textContent = problem;
  if (!bad.length && !problem) return true;
  if (openPanel) {
    openSettings();
    (bad[0] ?? byId('tools')).focus();
    byId(bad.length ? 'sampling-problem' : 'tools-problem').scrollIntoView({block: 'nearest'});
  }
  return false;
}

function writeSettings() {
  for (const name of SETTINGS) byId(name).value = current.settings[name];
  byId('thinking').checked = current.settings.thinking;
  showModel();
  showPrompts();
  checkSettings(false);
}

function takeSettings() {
  for (const name of SETTINGS) current.settings[name] = byId(name).value;
  current.settings.thinking = byId('thinking').checked;
  store.set('settings', JSON.stringify(current.settings));
  showModel();
  showPrompts();
  showContext();
  checkSettings(false);
  if (conversations.has(current.id)) save(current);
}

// A conversation may name a model that this server no longer has.
function showModel() {
  const select = byId('model');
  if (select.options.length && select.selectedIndex < 0) select.selectedIndex = 0;
  if (select.options.length) current.settings.model = select.value;
  byId('model-name').textContent = current.settings.model;
  byId('model-name').hidden = !current.settings.model;
}

async function loadModels() {
  try {
    const {data} = await (await ask('v1/models')).json();
    byId('model').replaceChildren(...data.map((model) => el('option', {value: model.id}, model.id)));
    for (const model of data) contextLengths.set(model.id, Number(model.max_model_len) || 0);
    const longest = Number(data[0]?.max_model_len);
    if (longest) byId('max_tokens').placeholder = 'up to ' + longest;
    byId('model').value = current.settings.model;
    showModel();
    showContext();
    if (!current.messages.length) renderThread();
  } catch (error) {
    if (error.status === 401) askForKey();
    else toast(error instanceof ServerError ? error.message : 'The models cannot be read.', 'Try again', loadModels);
  }
}

function askForKey() {
  if (byId('key-dialog').open) return;
  openKeyDialog(apiKey.get() ? 'The server does not take the key it was given.'
    : 'This server answers only to those who have a key.');
}

function openKeyDialog(reason) {
  byId('key-reason').textContent = reason;
  byId('key').value = apiKey.get();
  byId('keep-key').checked = store.get('key') !== null;
  byId('key-dialog').showModal();
  byId('key').select();
}

const isNarrow = (width) => matchMedia(`(max-width: ${width}px)`).matches;

function showVeil() {
  byId('veil').hidden = !((isNarrow(1150) && !byId('settings').hidden) || (isNarrow(760) && !byId('sidebar').hidden));
}

function openSettings() {
  byId('settings').hidden = false;
  showVeil();
}

function closeOverlays() {
  if (isNarrow(1150)) byId('settings').hidden = true;
  if (isNarrow(760)) byId('sidebar').hidden = true;
  showVeil();
}

function toggle(panel, opener) {
  panel.hidden = !panel.hidden;
  showVeil();
  if (panel.hidden) opener.focus();
  else panel.querySelector('header button').focus();
}

const THEMES = ['auto', 'light', 'dark'];
function showTheme(theme) {
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId('theme').replaceChildren(icon(theme), 'Theme: ' + (theme === 'auto' ? 'system' : theme));
  byId('theme').dataset.theme = theme;
}
