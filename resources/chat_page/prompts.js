// --- saved system prompts -------------------------------------------------------------------------------

function savedPrompts() {
  const list = parseJson(store.get('prompts') ?? '');
  return Array.isArray(list) ? list.map(asText).filter((text) => text.trim()) : [];
}

function keepPrompts(list) {
  store.set('prompts', JSON.stringify(list));
  showPrompts();
}

// A prompt is called by its first line.
function showPrompts() {
  const list = savedPrompts();
  const text = byId('system').value;
  const select = byId('saved-prompts');
  select.replaceChildren(el('option', {value: ''}, list.length ? 'Saved prompts' : 'None is saved'),
                         ...list.map((prompt, idx) => el('option', {value: idx}, makeTitle(prompt, 60))));
  const at = list.indexOf(text);
  select.value = at < 0 ? '' : String(at);
  select.disabled = !list.length;
  byId('save-prompt').disabled = !text.trim() || at >= 0;
  byId('delete-prompt').disabled = at < 0;
}

// Of the settings' own handler, which comes after this one, the text is taken.
on('saved-prompts', 'input', ({target}) => {
  if (target.value !== '') byId('system').value = savedPrompts()[Number(target.value)] ?? '';
});
on('save-prompt', 'click', () => {
  keepPrompts([...savedPrompts(), byId('system').value]);
  byId('saved-prompts').focus();
});
on('delete-prompt', 'click', () => {
  const before = savedPrompts();
  keepPrompts(before.filter((text) => text !== byId('system').value));
  byId('save-prompt').focus();
  toast('Prompt deleted', 'Undo', () => keepPrompts(before));
});
