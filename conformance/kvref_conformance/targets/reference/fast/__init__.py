"""Operations on the fast half of the reference, where they differ from those on the plain half."""
