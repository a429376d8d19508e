// --- elements ---------------------------------------------------------------------------------------

const byId = (id) => document.getElementById(id);
const on = (id, event, handler) => byId(id).addEventListener(event, handler);

// el('p', {class: 'note', onclick: f}, 'text', node...)
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, '');
    else if (value !== false) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const use = document.createElementNS('http://www.w3.org/2000/svg', 'use');
  svg.setAttribute('class', name === 'gem' ? 'gem' : 'stroke');
  svg.setAttribute('aria-hidden', 'true');
  use.setAttribute('href', '#i-' + name);
  svg.append(use);
  return svg;
}

for (const button of document.querySelectorAll('[data-icon]')) button.prepend(icon(button.dataset.icon));

const iconButton = (name, label, onclick) =>
  el('button', {type: 'button', class: 'icon', title: label, 'aria-label': label, onclick}, icon(name));

let toastTimer = 0;
function toast(text, action = '', onclick = null) {
  const box = byId('toast');
  box.replaceChildren(el('span', {}, text));
  if (action) box.append(el('button', {onclick: () => { box.hidden = true; onclick(); }}, action));
  box.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { box.hidden = true; }, action || text.length > 40 ? 8000 : 3500);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // Browsers offer the clipboard to https and localhost only.
    const area = el('textarea', {}, text);
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  toast('Copied');
}
